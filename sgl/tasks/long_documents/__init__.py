"""What `sgl.extract_document` is made of: types with optional fields, rules of merging, places, and the cost."""
