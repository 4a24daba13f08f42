"""The OpenAI-compatible server in front of the reference engine, and the page of the live tree."""
