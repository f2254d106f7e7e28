job "demo" {
  provider "broken" { # error: Provider "broken" has a broken schema
    thing = 1
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
