job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  mount "/a" {
    type   = "nfs"
    source = "/export/data"  # error: Wrong value for "source"
  }
  mount "/b" {
    type   = "s3"
    source = "my-bucket"     # error: Wrong value for "source"
  }
  mount "/c" {
    type   = "efs"
    source = "data"          # error: Wrong value for "source"
  }
  mount "/d" {
    type   = "gcs"
    source = "gs:///prefix"  # error: Wrong value for "source"
  }
  mount "/e" {
    type   = "nfs"
    source = "h:/a b"        # error: Wrong value for "source"
  }
}
