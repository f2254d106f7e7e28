job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  secrets = [
    ["A"], # error: Wrong type for "secrets"
    "", # error: Wrong value for "secrets"
  ]
}
