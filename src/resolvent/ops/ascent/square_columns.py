"""What the columns of a query's random numbers decide in Square; the signs of the channels follow, then their ranks."""

TOP, LEFT, TOP_2, LEFT_2, TURN, SIGNS = range(6)
