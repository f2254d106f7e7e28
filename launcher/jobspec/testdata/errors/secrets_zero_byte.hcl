job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  secrets = [
    jsondecode("\"\\u0000a\""), # error: Wrong value for "secrets"
  ]
}
