job "demo" {
  provider { # error: Missing label of "provider"
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
