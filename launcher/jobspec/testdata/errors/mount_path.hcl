job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  mount "data" {   # error: Wrong mount path "data"
    type   = "nfs"
    source = "10.0.0.4:/data"
  }
  mount "/etc" {   # error: Wrong mount path "/etc"
    type   = "nfs"
    source = "10.0.0.4:/data"
  }
  mount "/proc/x" { # error: Wrong mount path "/proc/x"
    type   = "nfs"
    source = "10.0.0.4:/data"
  }
  mount "/data/" { # error: Wrong mount path "/data/"
    type   = "nfs"
    source = "10.0.0.4:/data"
  }
  mount "/my data" { # error: Wrong mount path "/my data"
    type   = "nfs"
    source = "10.0.0.4:/data"
  }
}
