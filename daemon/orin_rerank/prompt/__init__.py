"""From a request to token ids, positions and pixels, exactly as the models were trained to see them."""
