"""What every benchmark uses: ranks, rounds, results, tables, pictures."""
