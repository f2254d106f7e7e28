job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  mount { # error: Missing label of "mount"
    type   = "nfs"
    source = "10.0.0.4:/data"
  }
}
