"""The Microduck's model files: `scene.xml` is the source, `derive.py` writes the other four."""
