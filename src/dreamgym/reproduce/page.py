def write_page(results, path, scale):
    return {"text": str(results)}
