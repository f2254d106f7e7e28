job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  limits {
    unbounded_leak = 1 # error: Wrong type for "unbounded_leak"
  }
}
