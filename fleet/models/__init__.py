"""Model versions: trained, judged, published, taken back."""
