"""What /usr/bin/orin-rerank runs, with the folders of packages in PYTHONPATH."""

from orin_rerank.cli.main import main

main()
