job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  outputs { # error: Missing attribute "from" | error: Missing attribute "to"
  }
}
