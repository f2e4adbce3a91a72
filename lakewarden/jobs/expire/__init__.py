"""expire: plan and execute."""
