"""TensorFlow's data service in Spark tasks, and a callback of Keras for `HorovodRunner`."""
