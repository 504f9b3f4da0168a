"""The API server: the only user of kubernetes_asyncio, and of aiohttp as a client. Knows no node."""
