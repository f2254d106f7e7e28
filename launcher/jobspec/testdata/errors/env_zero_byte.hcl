job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  env = {
    A = jsondecode("\"\\u0000\"") # error: Wrong value for "env"
  }
}
