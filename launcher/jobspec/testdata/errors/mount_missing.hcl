job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  mount "/data" { # error: Missing attribute "type" | error: Missing attribute "source"
  }
}
