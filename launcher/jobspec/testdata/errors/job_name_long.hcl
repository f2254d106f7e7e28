job "a-very-long-name-of-more-than-thirty" { # error: Wrong name "a-very-long-name-of-mor…"
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}
