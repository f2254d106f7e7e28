# The first job of the pipeline: two workers each make a part of the data.
job "prepare" {
  provider "local" {}

  workers { count = 2 }

  run "ranks" {
    command = <<-E
      mkdir -p data
      seq $((RANK * 1000 + 1)) $(((RANK + 1) * 1000)) >data/part-$RANK
      wc -l data/part-$RANK
    E
  }

  outputs {
    from  = "data"
    to    = "./data"
    nodes = "all" # a folder for each node
  }
}
