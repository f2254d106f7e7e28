job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  secrets = "TOKEN" # error: Wrong type for "secrets"
}
