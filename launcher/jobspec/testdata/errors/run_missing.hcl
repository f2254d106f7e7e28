job "demo" { # error: Missing block "run"
  provider "local" {}
  workers {
    count = 2
  }
}
