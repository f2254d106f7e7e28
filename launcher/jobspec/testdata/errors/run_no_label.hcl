job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run { # error: Missing label of "run"
    command = "true"
  }
}
