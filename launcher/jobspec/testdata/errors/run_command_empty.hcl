job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "  " # error: Wrong value for "command"
  }
}
