job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = jsondecode("\"a\\u0000\"") # error: Wrong value for "command"
  }
}
