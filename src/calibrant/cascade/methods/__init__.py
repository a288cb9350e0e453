"""How sure an answer is: confidences read from tokens, learned, or asked for."""
