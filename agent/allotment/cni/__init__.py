"""What a container runtime says and hears: frames, requests, results per spec version, answers, the socket server."""
