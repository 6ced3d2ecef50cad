"""What pyproject.toml cannot say: configs/ and docs/ of the clone are the packages s3zoo.configs and s3zoo.docs.

Data files are those beside modules; s3zoo/weights and s3zoo/tables have files and no module.
"""

from setuptools import find_namespace_packages, find_packages, setup

configs = ["s3zoo.configs", *(f"s3zoo.configs.{name}" for name in find_namespace_packages("configs"))]

setup(
    packages=[*find_packages(include=["s3zoo", "s3zoo.*"]), *configs, "s3zoo.docs"],
    package_dir={"s3zoo.configs": "configs", "s3zoo.docs": "docs"},
    package_data={
        "": ["*.json", "*.md", "*.html", "*.css", "*.js", "*.npz", "*.svg"],
        "s3zoo": ["weights/*/*", "tables/*"],
    },
)
