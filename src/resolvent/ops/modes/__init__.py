"""From the parameters of a diagonal layer to the tables of its blocked pass: one operation, with its gradients."""
