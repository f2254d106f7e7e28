job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" { # error: Missing attribute "command"
  }
}
