"""The model store: content-addressed blobs, manifests written last, and a local cache.

`objects` knows bytes under keys and nothing of models; `repository` knows models and nothing of
where bytes lie; `cache` keeps pulled models on a server's disk.
"""
