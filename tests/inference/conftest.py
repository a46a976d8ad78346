from probed_models import explicit_maps, make_model

__all__ = ["explicit_maps", "make_model"]
