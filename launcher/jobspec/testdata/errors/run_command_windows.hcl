job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "a\r\nb" # error: command has Windows line ends
  }
}
