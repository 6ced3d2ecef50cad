"""Run configurations; in an installed wheel this folder is the package s3zoo.configs."""
