"""The only user of kubernetes_asyncio."""
