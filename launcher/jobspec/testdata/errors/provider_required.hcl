job "demo" {
  provider "ssh" { # error: Missing attribute "host_key"
    hosts = ["10.0.0.1"]
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
