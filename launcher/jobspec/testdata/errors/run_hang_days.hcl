job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command      = "true"
    hang_timeout = "1d" # error: Wrong value for "hang_timeout"
  }
}
