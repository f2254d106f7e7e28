job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command      = "true"
    hang_timeout = "0s" # error: Wrong value for "hang_timeout"
  }
}
