"""Visual question answering: image tokens of any backbone and a question in one BERT encoder (S3 Table 4, SOHO)."""
