pytest_plugins = ["gyrator_testing.filetest.plugin", "pytester"]
