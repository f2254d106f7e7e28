job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  env = {
    A = [1, 2] # error: Wrong type for "env"
  }
}
