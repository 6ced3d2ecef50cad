"""What pyproject.toml cannot say: configs/ at the top of the clone is the package s3zoo.configs in the wheel.

Data files are those beside modules; s3zoo/weights has folders of files and no module.
"""

from setuptools import find_namespace_packages, find_packages, setup

configs = ["s3zoo.configs", *(f"s3zoo.configs.{name}" for name in find_namespace_packages("configs"))]

setup(
    packages=find_packages(include=["s3zoo", "s3zoo.*"]) + configs,
    package_dir={"s3zoo.configs": "configs"},
    package_data={"": ["*.json", "*.md", "*.html", "*.css", "*.js"], "s3zoo": ["weights/*/*"]},
)
