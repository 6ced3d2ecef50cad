"""Nobody may import this: a folder that names a module must not have it run."""
