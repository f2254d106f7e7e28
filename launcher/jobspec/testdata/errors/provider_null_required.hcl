job "demo" {
  provider "ssh" { # error: Missing attribute "hosts"
    hosts    = null
    host_key = ["a b"]
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
