job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "torch" { # error: Unknown run "torch"
    command = "true"
  }
}
