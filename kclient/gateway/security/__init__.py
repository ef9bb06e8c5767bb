"""Who a gateway's clients are: the listeners' security, logins, and what is kept of users."""
