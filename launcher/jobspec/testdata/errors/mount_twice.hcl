job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  mount "/data" {
    type   = "nfs"
    source = "10.0.0.4:/data"
  }
  mount "/data" { # error: Two mounts at "/data"
    type   = "nfs"
    source = "10.0.0.5:/data"
  }
}
